"""Fine-tuning of a SONAR decoder on the embeddings of a corpus, LCM 2.3.5 and 2.5.2."""
