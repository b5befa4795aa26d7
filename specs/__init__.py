"""What things are: GPU types, models, clusters, workloads, plans, profiles."""
