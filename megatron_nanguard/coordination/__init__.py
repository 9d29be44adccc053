"""How ranks agree: handshake over the store, one vote per step, one exchange per alarm, a deadline on every wait."""
