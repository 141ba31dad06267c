"""Large Concept Models, LCM 2.3: networks and their mathematics; tensors in, tensors out."""
