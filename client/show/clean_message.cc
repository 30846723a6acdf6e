#include "client/show/clean_message.h"

#include "common/base/clean_text.h"
#include "common/job/for_each_text.h"

namespace nsa::client {

void CleanTexts(google::protobuf::Message* message) { ForEachText(message, CleanText); }

}  // namespace nsa::client
