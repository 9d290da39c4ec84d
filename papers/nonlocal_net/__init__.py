"""Non-local neural networks (Wang, Girshick, Gupta & He 2018)."""
