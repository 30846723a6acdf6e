// A message as a list of keys and their values, to compare two of them: "train.lr" and "0.001".
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace nsa {

struct FlatKey {
  std::string key;  // as in a job file: "data.val_where.books.source", "alerts[0].when"
  std::vector<std::string> values;  // one, or those of a list of values
  bool is_list = false;
  bool is_text = false;

  std::string Text() const;  // "a" or "[a, b]"
};

enum class UnsetKeys { kLeftOut, kShown };

// The keys that are set, in the order of the schema, those of a map in the order of their names;
// a section that sets nothing is "{}". kShown: no such sections, but also values that are 0 or
// empty because nothing sets them; an enum is "-" then.
std::vector<FlatKey> FlatKeys(const google::protobuf::Message& message, UnsetKeys unset);

// One value of a field as a job file has it, a text without quotes: element `index` of a repeated
// field, or the value of a singular one (-1).
std::string ScalarText(const google::protobuf::Message& message,
                       const google::protobuf::FieldDescriptor& field, int index);

}  // namespace nsa
