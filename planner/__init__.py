"""What a plan costs, whether it fits, how plans are found."""
