"""Pictures of what a pipeline does, as HTML and SVG text: values in, text out.

Whoever has figures (a plan, `stats()`, a batch, a lane's books, a checkpoint) hands over plain values; the modules here
know nothing of where they come from, and of no notebook, browser or plotting library. What comes out needs nothing else:
no scripts, no fonts, no files. Text takes the colour of the page around it, so that light and dark themes both work;
shapes differ by more than colour; everything that came from outside is escaped; and however large the input is, the
output is not: what does not fit is counted instead.
"""
