// A job in which every field is set, each to a different value.
#pragma once

#include "google/protobuf/message.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

inline void FillEveryField(google::protobuf::Message* message, int* counter) {
  using google::protobuf::FieldDescriptor;
  const auto& r = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* f = message->GetDescriptor()->field(i);
    const int n = ++*counter;
    const int count = f->is_repeated() ? 2 : 1;
    for (int k = 0; k < count; ++k) {
      const std::string text = "text " + std::to_string(n) + "/" + std::to_string(k);
      const bool many = f->is_repeated();
      switch (f->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          many ? r.AddInt32(message, f, n) : r.SetInt32(message, f, n);
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          many ? r.AddInt64(message, f, n) : r.SetInt64(message, f, n);
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          many ? r.AddDouble(message, f, n / 7.0) : r.SetDouble(message, f, n / 7.0);
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          many ? r.AddBool(message, f, true) : r.SetBool(message, f, true);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          many ? r.AddString(message, f, text) : r.SetString(message, f, text);
          break;
        case FieldDescriptor::CPPTYPE_ENUM: {
          const int value = f->enum_type()->value(1 + k)->number();
          many ? r.AddEnumValue(message, f, value) : r.SetEnumValue(message, f, value);
          break;
        }
        case FieldDescriptor::CPPTYPE_MESSAGE:
          if (f->is_map()) {
            auto* entry = r.AddMessage(message, f);
            const FieldDescriptor* value = f->message_type()->map_value();
            entry->GetReflection()->SetString(entry, f->message_type()->map_key(), text);
            if (value->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
              FillEveryField(entry->GetReflection()->MutableMessage(entry, value), counter);
            } else {
              entry->GetReflection()->SetString(entry, value, "why: " + text);
            }
          } else {
            FillEveryField(many ? r.AddMessage(message, f) : r.MutableMessage(message, f), counter);
          }
          break;
        default:
          break;
      }
    }
  }
}

inline v1::JobSpec JobWithEveryField() {
  v1::JobSpec spec;
  int counter = 0;
  FillEveryField(&spec, &counter);
  return spec;
}

}  // namespace nsa
