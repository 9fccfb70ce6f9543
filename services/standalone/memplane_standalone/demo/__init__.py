"""`memplane demo`: a conversation is remembered, and questions are asked of it."""
