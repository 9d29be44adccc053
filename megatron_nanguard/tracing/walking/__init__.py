"""After the pass: from bad gradients, losses and messages back to where the bad values began, put into one record."""
