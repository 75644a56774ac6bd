/* Messages in channels: see text_channels.c. */
#pragma once

#include "engine/text_stream.h"

/* Whether a control token's text is a mark of messages, so that it must be part of the text. */
bool text_channels_is_mark(const char *piece, size_t length);

/* The next piece of a stream that has channels, but of a call's. */
bool text_channels_next(qp_text_stream *stream, qp_text_piece *piece);
