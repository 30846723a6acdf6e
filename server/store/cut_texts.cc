#include "server/store/cut_texts.h"

#include <string>

#include "common/base/clean_text.h"
#include "common/job/for_each_text.h"

namespace nsa::server {

void CutTexts(google::protobuf::Message* message, size_t most) {
  constexpr size_t kEllipsis = 3;
  message->DiscardUnknownFields();
  ForEachText(message, [most](const std::string& text) {
    return text.size() <= most ? text : CutText(text, most - kEllipsis);
  });
}

}  // namespace nsa::server
