"""Build time: plan, compile, pack, prove. May import anything; the run-time half never imports it."""
