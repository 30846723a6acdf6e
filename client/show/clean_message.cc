#include "client/show/clean_message.h"

#include <vector>

#include "common/base/clean_text.h"

namespace nsa::client {

void CleanTexts(google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool text = field->type() == FieldDescriptor::TYPE_STRING;
    const bool inner = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const int size = field->is_repeated() ? reflection.FieldSize(*message, field) : 1;
    for (int i = 0; i < size && (text || inner); ++i) {
      if (inner) {
        CleanTexts(field->is_repeated() ? reflection.MutableRepeatedMessage(message, field, i)
                                        : reflection.MutableMessage(message, field));
      } else if (field->is_repeated()) {
        reflection.SetRepeatedString(message, field, i,
                                     CleanText(reflection.GetRepeatedString(*message, field, i)));
      } else {
        reflection.SetString(message, field, CleanText(reflection.GetString(*message, field)));
      }
    }
  }
}

}  // namespace nsa::client
