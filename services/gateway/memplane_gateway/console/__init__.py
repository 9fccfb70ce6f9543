"""Pages for people, at `/console`: a client of the gateway's own routes, in the process that serves them.

Whatever a page shows or does is a request to a route of the API with the key that somebody signed in with. So scopes,
limits, audit and rules are those of the API, and none is written twice.
"""
