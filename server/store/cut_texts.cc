#include "server/store/cut_texts.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/clean_text.h"

namespace nsa::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void CutAll(Message* message, size_t most) {
  constexpr size_t kEllipsis = 3;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool text = field->type() == FieldDescriptor::TYPE_STRING;
    const bool inner = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const bool many = field->is_repeated();
    const int size = many ? reflection.FieldSize(*message, field) : 1;
    for (int i = 0; i < size && (text || inner); ++i) {
      if (inner) {
        CutAll(many ? reflection.MutableRepeatedMessage(message, field, i)
                    : reflection.MutableMessage(message, field),
               most);
        continue;
      }
      const std::string whole = many ? reflection.GetRepeatedString(*message, field, i)
                                     : reflection.GetString(*message, field);
      if (whole.size() <= most) continue;
      std::string cut = CutText(whole, most - kEllipsis);
      if (many) {
        reflection.SetRepeatedString(message, field, i, std::move(cut));
      } else {
        reflection.SetString(message, field, std::move(cut));
      }
    }
  }
}

}  // namespace

void CutTexts(Message* message, size_t most) {
  message->DiscardUnknownFields();
  CutAll(message, most);
}

}  // namespace nsa::server
