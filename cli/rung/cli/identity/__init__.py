"""Commands about who one is: login, logout, whoami, tokens."""
