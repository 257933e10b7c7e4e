"""Health of a process: its loops, its checks, its disks, and its probe."""
