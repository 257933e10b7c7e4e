"""Commands for those who run an installation: services, pools, objects, dead letters."""
