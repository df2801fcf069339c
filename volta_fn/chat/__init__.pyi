from volta_fn.chat.conversation import ChatTemplate as ChatTemplate
from volta_fn.chat.conversation import Conversation as Conversation
from volta_fn.chat.conversation import TextDecoder as TextDecoder
from volta_fn.chat.conversation import load_tokenizer as load_tokenizer
