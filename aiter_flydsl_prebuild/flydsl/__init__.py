"""FlyDSL as this project meets it: its cache, its installation, and the toolchain it compiles with."""
