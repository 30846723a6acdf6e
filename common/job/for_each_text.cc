#include "common/job/for_each_text.h"

#include <vector>

namespace nsa {

void ForEachText(google::protobuf::Message* message,
                 const std::function<std::string(const std::string&)>& change) {
  using google::protobuf::FieldDescriptor;
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
        ForEachText(many ? reflection.MutableRepeatedMessage(message, field, i)
                         : reflection.MutableMessage(message, field),
                    change);
      } else if (many) {
        reflection.SetRepeatedString(message, field, i,
                                     change(reflection.GetRepeatedString(*message, field, i)));
      } else {
        reflection.SetString(message, field, change(reflection.GetString(*message, field)));
      }
    }
  }
}

}  // namespace nsa
