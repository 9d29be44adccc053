"""One file for each cause: `judge(evidence)` weighs what speaks for and against it."""
