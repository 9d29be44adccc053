"""While the pass runs: make events of what it does. Events hold names, places and flags, but no tensor.

There are two sources of events: `recorder` makes them of operators, `messages` of collectives, sends and receives. Both
find the writers of what they read in `reading`, and add their events to the `event_log`. `observers` look at the events
of any source.
"""
