"""OpenID Connect: an identity provider, its ID tokens, and the accounts of its people here."""
