"""Choose builds that fit a machine: what to install (setup), and whether what is installed fits (installed)."""
