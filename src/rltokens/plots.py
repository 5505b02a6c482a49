"""The book's figures. Functions take arrays and give back a Matplotlib figure."""
