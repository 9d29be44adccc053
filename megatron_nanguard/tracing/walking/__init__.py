"""After the pass: walk from bad gradients, losses and messages back to where bad values began, and record the way.

`walk` finds the origins. `origin_records` and `message_records` describe them and the messages on the way; `rank_trace`
puts all of it into the record of this rank.
"""
