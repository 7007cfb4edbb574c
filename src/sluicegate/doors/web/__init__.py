"""What the doors of Python frameworks share; none of it knows a framework. What refused clients are told is in ``doors.refusals``.

callables.py   key, identity and cost functions: which may be coroutine functions, and where
declared.py    Limit: a limit written beside a route instead of in the rules file
request.py     RequestLimits: all that was decided for one request, each rule once, all of it or nothing
door.py        Door: a limiter with its headers; facts and charges of a request
workers.py     a warning where workers would count each by itself
outages.py     what the log says of a store that goes away and comes back
environ.py     facts from the environment of WSGI and Django
routes.py      the route template of a request, found as Starlette's and FastAPI's routers find it
"""
