"""Who asks: each request gets its principal, by a token, a session, or an identity provider."""
