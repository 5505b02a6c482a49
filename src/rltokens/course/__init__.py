"""From functions to notebooks, pages and scores: the machinery of the course, not its subject."""
