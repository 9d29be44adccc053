"""Save the suspect call in a traced replay, run it again here, on a peer and in higher precision, and write a bundle.

catcher = CallCatcher({1207}, CAP_BYTES)     called by the tracer around every operator, see call_catcher.py
call = catcher.calls[1207]
arbitrate(call)                              -> records.suspect_call.Arbitration
write_bundle(directory, call)                call.json, tensors.safetensors, repro.py
"""
