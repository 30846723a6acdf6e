// The page at / of nsa-worker serve: page/chat.html, compiled in.
#pragma once

#include <string>
#include <string_view>

namespace nsa::train::serve {

extern const std::string_view kChatPage;

// The Content-Security-Policy that allows what the page does and nothing else: its one script and
// its one style sheet, by their hashes, and requests to the server that it comes from.
const std::string& ChatPagePolicy();

}  // namespace nsa::train::serve
