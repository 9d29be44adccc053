"""The pictures of the HTML page: each turns the incident, or the rows of its ranks, into a chart or a grid."""
