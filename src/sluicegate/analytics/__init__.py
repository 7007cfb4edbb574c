"""What is known about traffic afterwards: homes that keep what nodes tell, and what is asked of them."""
