"""What a request may do, and where: rights in workspaces and projects."""
