"""What runs inside FlyDSL's process: look-up in place of the trace, launchers in place of the engine."""
