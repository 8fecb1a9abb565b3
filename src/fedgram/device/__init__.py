"""On the phone: the packed model `lm.fgram`, its reader, and the keyboard that types with it. Paper: §1.1."""
