from volta_fn.chat.conversation import Conversation as Conversation
from volta_fn.chat.templates import ChatTemplate as ChatTemplate
from volta_fn.chat.tokenizer import TextDecoder as TextDecoder
from volta_fn.chat.tokenizer import load_tokenizer as load_tokenizer
