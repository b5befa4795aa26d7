"""How the policy is trained (DESIGN section 9); needs torch, which planning does not."""
