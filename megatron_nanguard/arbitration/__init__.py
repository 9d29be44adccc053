"""The accused call once more: saved in a traced replay, run again here, on a peer and in higher precision, and bundled.

catcher = CallCatcher({1207}, CAP_BYTES)     the tracer tells it of every operator, see capture.py
call = catcher.calls[1207]
arbitrate(call)                              -> records.arbitration.Arbitration
write_bundle(directory, call)                call.json, tensors.safetensors, repro.py
"""
