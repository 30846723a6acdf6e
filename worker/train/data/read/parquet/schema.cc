#include "worker/train/data/read/parquet/schema.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "worker/train/data/read/parquet/compact.h"

namespace nsa::train::parquet {
namespace {

using Field = CompactReader::Field;

constexpr int64_t kByteArray = 6;
constexpr size_t kListed = 20;  // columns that a message names

// One element of the schema, which lists a tree from the root on, each node before its children.
struct Element {
  std::string_view name;
  std::optional<int64_t> type;
  int64_t repetition = 0;  // 0 required, 1 optional, 2 repeated
  int64_t children = 0;
  std::optional<int64_t> converted;
  int logical = 0;  // the field of the union LogicalType that is set
};

Element ReadElement(CompactReader* reader) {
  Element element;
  reader->Struct([&](const Field& field) {
    switch (field.id) {
      case 1:
        element.type = reader->Integer(field);
        return true;
      case 3:
        element.repetition = reader->Integer(field);
        return true;
      case 4:
        element.name = reader->Binary(field);
        return true;
      case 5:
        element.children = reader->Integer(field);
        return true;
      case 6:
        element.converted = reader->Integer(field);
        return true;
      case 10:
        if (field.type != CompactReader::kStruct) return false;
        reader->Struct([&](const Field& kind) {
          element.logical = kind.id;
          return false;
        });
        return true;
      default:
        return false;
    }
  });
  return element;
}

// What an element is instead of a text, or "".
std::string_view Fault(const Element& element) {
  if (element.repetition == 2) return "a list";
  if (element.children > 0) return "nested";
  if (element.type != kByteArray) return "not of type BYTE_ARRAY";
  constexpr int kString = 1, kEnum = 4, kJson = 12;
  if (element.logical != 0) {
    const bool text =
        element.logical == kString || element.logical == kEnum || element.logical == kJson;
    return text ? "" : "not a text";
  }
  constexpr int64_t kUtf8 = 0, kEnumBefore = 4, kJsonBefore = 19;
  const int64_t converted = element.converted.value_or(kUtf8);
  const bool text = converted == kUtf8 || converted == kEnumBefore || converted == kJsonBefore;
  return text ? "" : "not a text";
}

// Walks over the schema. A nested element's descendants are counted, and nothing else.
class Schema {
 public:
  explicit Schema(std::string_view name) : name_(name) {}

  void Add(const Element& element) {
    bad_ = bad_ || element.children < 0 || element.children > INT32_MAX;
    if (bad_) return;
    if (first_) {
      first_ = false;
      top_left_ = element.children;
      return;
    }
    const bool top = inner_left_ == 0;
    if (top) {
      --top_left_;
      AddColumn(element);
    } else {
      --inner_left_;
    }
    inner_left_ += element.children;
    if (element.children == 0) ++leaves_;
  }

  bool whole() const { return !bad_ && !first_ && top_left_ == 0 && inner_left_ == 0; }

  absl::StatusOr<TextColumn> Result() const {
    if (!found_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no column '%s' (%s); set data.text_field", Clean(name_), Listed()));
    }
    if (!fault_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("column '%s' is %s (must be a column of texts; there are: %s); set "
                          "data.text_field to another one, or write the file again",
                          Clean(name_), fault_, Listed()));
    }
    return TextColumn{leaf_, leaves_, optional_};
  }

 private:
  static std::string Clean(std::string_view name) {
    return CleanLine(name.substr(0, std::min<size_t>(name.size(), 100)));
  }

  void AddColumn(const Element& element) {
    const std::string_view fault = Fault(element);
    if (fault.empty() && ++texts_ <= kListed) names_.push_back(Clean(element.name));
    if (element.name != name_ || found_) return;
    found_ = true;
    fault_ = fault;
    leaf_ = leaves_;
    optional_ = element.repetition == 1;
  }

  std::string Listed() const {
    if (names_.empty()) return "no column holds text";
    const std::string more = texts_ > kListed ? ", …" : "";
    return absl::StrCat(absl::StrJoin(names_, ", "), more);
  }

  const std::string_view name_;
  bool first_ = true;
  bool bad_ = false;
  int64_t top_left_ = 0;    // columns that are still to come
  int64_t inner_left_ = 0;  // descendants of the last column that are still to come
  size_t leaves_ = 0;
  size_t texts_ = 0;
  std::vector<std::string> names_;
  bool found_ = false;
  size_t leaf_ = 0;
  bool optional_ = false;
  std::string_view fault_;
};

}  // namespace

absl::StatusOr<TextColumn> FindTextColumn(std::string_view footer, std::string_view name) {
  Schema schema(name);
  CompactReader reader(footer);
  reader.Struct([&](const Field& field) {
    if (field.id != 2) return false;
    reader.List(field, CompactReader::kStruct, [&] { schema.Add(ReadElement(&reader)); });
    return true;
  });
  if (!reader.ok()) return absl::DataLossError(std::string(reader.fault()));
  if (!schema.whole()) return absl::DataLossError("its schema is no tree of columns");
  return schema.Result();
}

}  // namespace nsa::train::parquet
