"""Transfer of inductive biases through distillation (Abnar, Dehghani & Zuidema 2020)."""
