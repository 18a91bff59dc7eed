"""Tables in, findings out; pure functions over data frames."""
