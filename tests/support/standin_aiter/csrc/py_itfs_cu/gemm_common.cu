// What tells the two padding rules apart: a step below 16 rows.
if (M > 0 && M < 16) { padded_m = nextPow2(M); }
