#include "common/job/data/parquet/schema.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/job/data/parquet/compact.h"

namespace nsa::parquet {
namespace {

using Field = CompactReader::Field;

constexpr int64_t kByteArray = 6;
constexpr size_t kListed = 20;  // columns that a message names
constexpr size_t kMostTexts = 1000;

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

// What an element without children is instead of a text, or "". `repetition`: how many lists it is
// in.
std::string_view Fault(const Element& element, int repetition) {
  if (element.type != kByteArray) return "not of type BYTE_ARRAY";
  if (repetition > 1) return "a list within a list";
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

// A column of texts.
struct Text {
  std::string name;  // at most about 200 bytes of it, fit for a message
  size_t leaf = 0;   // its index among the columns of a row group
};

// Walks over the schema.
class Schema {
 public:
  // Looks for a column by its name, or for the field `field` within the list of that name.
  explicit Schema(std::string_view name, std::string_view field = {})
      : name_(name), field_(field) {}

  void Add(const Element& element) {
    bad_ =
        bad_ || element.children < 0 || element.children > INT32_MAX || (!first_ && nodes_.empty());
    if (bad_) return;
    if (std::exchange(first_, false)) {
      nodes_.push_back({.left = element.children});
    } else {
      AddNode(element);
    }
    while (!nodes_.empty() && nodes_.back().left == 0) nodes_.pop_back();
  }

  bool whole() const { return !bad_ && !first_ && nodes_.empty(); }

  // The first kMostTexts of them.
  const std::vector<Text>& texts() const { return texts_; }

  absl::StatusOr<TextColumn> Result(std::string_view key) const {
    if (!found_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no column '%s'%s (%s); set %s", Clean(name_),
                          field_.empty() ? "" : absl::StrFormat(" with a text '%s'", field_),
                          Listed(), Clean(key)));
    }
    if (!fault_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("column '%s' is %s (must be a column of texts; there are: %s); set %s to "
                          "another one, or write the file again",
                          Clean(name_), fault_, Listed(), Clean(key)));
    }
    TextColumn column = column_;
    column.leaves = leaves_;
    return column;
  }

 private:
  // An element whose children are still to come.
  struct Node {
    std::string_view name;
    int64_t left = 0;     // children
    bool only = false;    // it is what is looked for, and so is its only child
    bool within = false;  // it is the list in which a field is looked for, or within that
    int definition = 0;
    int repetition = 0;
  };

  static std::string Clean(std::string_view name) { return CleanLine(CutText(name, 100)); }

  void AddNode(const Element& element) {
    Node& parent = nodes_.back();
    --parent.left;
    const bool named = IsAt(element.name);
    const bool leaf = element.children == 0;
    const bool wanted =
        field_.empty() ? parent.only || named
                       : parent.within && leaf && element.name == field_ && parent.repetition == 1;
    const Node node = {.name = element.name,
                       .left = element.children,
                       .only = wanted && element.children == 1,
                       .within = parent.within || (!field_.empty() && named),
                       .definition = parent.definition + (element.repetition == 0 ? 0 : 1),
                       .repetition = parent.repetition + (element.repetition == 2 ? 1 : 0)};
    if (leaf) return AddColumn(element, node, wanted);
    if (wanted && !found_) fault_ = "nested";
    found_ = found_ || wanted;
    nodes_.push_back(node);
  }

  void AddColumn(const Element& element, const Node& node, bool wanted) {
    const std::string_view fault = Fault(element, node.repetition);
    if (fault.empty() && texts_.size() < kMostTexts) {
      texts_.push_back({PathOf(element.name), leaves_});
    }
    if (wanted && !chosen_) {
      found_ = chosen_ = true;
      fault_ = fault;
      column_ = {.leaf = leaves_, .definition = node.definition, .repetition = node.repetition};
    }
    ++leaves_;
  }

  // Whether the name that is looked for is that of the element `last` in the nodes. Stops at the
  // first difference: a schema may have a million nodes within each other.
  bool IsAt(std::string_view last) const {
    std::string_view rest = name_;
    for (size_t i = 1; i < nodes_.size(); ++i) {
      const std::string_view name = nodes_[i].name;
      if (!rest.starts_with(name) || !rest.substr(name.size()).starts_with('.')) return false;
      rest.remove_prefix(name.size() + 1);
    }
    return rest == last;
  }

  std::string PathOf(std::string_view last) const {
    std::string path;
    for (size_t i = 1; i < nodes_.size() && path.size() <= 100; ++i) {
      path += nodes_[i].name;
      path += '.';
    }
    path += last;
    return Clean(path);
  }

  std::string Listed() const {
    if (texts_.empty()) return "no column holds text";
    const auto listed = static_cast<std::ptrdiff_t>(std::min(texts_.size(), kListed));
    const auto name = [](std::string* out, const Text& text) { out->append(text.name); };
    return absl::StrCat(absl::StrJoin(texts_.begin(), texts_.begin() + listed, ", ", name),
                        texts_.size() > kListed ? ", …" : "");
  }

  const std::string_view name_;
  const std::string_view field_;
  bool first_ = true;
  bool bad_ = false;
  std::vector<Node> nodes_;  // from the root to the parent of the next element
  size_t leaves_ = 0;
  std::vector<Text> texts_;
  bool found_ = false;
  bool chosen_ = false;  // column_ is set
  TextColumn column_;
  std::string_view fault_;
};

absl::Status ReadSchema(std::string_view footer, Schema* schema) {
  CompactReader reader(footer);
  reader.Struct([&](const Field& field) {
    if (field.id != 2) return false;
    reader.List(field, CompactReader::kStruct, [&] { schema->Add(ReadElement(&reader)); });
    return true;
  });
  if (!reader.ok()) return absl::DataLossError(std::string(reader.fault()));
  if (!schema->whole()) return absl::DataLossError("its schema is no tree of columns");
  return absl::OkStatus();
}

// The bytes of a column of a row group, unpacked.
int64_t ReadColumnBytes(CompactReader* reader) {
  int64_t bytes = 0;
  reader->Struct([&](const Field& chunk) {
    if (chunk.id != 3 || chunk.type != CompactReader::kStruct) return false;
    reader->Struct([&](const Field& field) {
      if (field.id != 6) return false;
      bytes = reader->Integer(field);
      return true;
    });
    return true;
  });
  return bytes;
}

// The bytes of each column in the first row group.
std::vector<int64_t> BytesOfColumns(std::string_view footer) {
  std::vector<int64_t> bytes;
  bool first = true;
  CompactReader reader(footer);
  reader.Struct([&](const Field& field) {
    if (field.id != 4) return false;
    reader.List(field, CompactReader::kStruct, [&] {
      const bool counts = std::exchange(first, false);
      reader.Struct([&](const Field& group) {
        if (!counts || group.id != 1) return false;
        reader.List(group, CompactReader::kStruct,
                    [&] { bytes.push_back(ReadColumnBytes(&reader)); });
        return true;
      });
    });
    return true;
  });
  return bytes;
}

}  // namespace

absl::StatusOr<TextColumn> FindTextColumn(std::string_view footer, std::string_view name,
                                          std::string_view key) {
  Schema schema(name);
  if (const absl::Status read = ReadSchema(footer, &schema); !read.ok()) return read;
  return schema.Result(key);
}

absl::StatusOr<TextColumn> FindFieldOfList(std::string_view footer, std::string_view list,
                                           std::string_view field) {
  Schema schema(list, field);
  if (const absl::Status read = ReadSchema(footer, &schema); !read.ok()) return read;
  return schema.Result("data.text_field");
}

std::string LargestTextColumn(std::string_view footer) {
  Schema schema("");
  if (!ReadSchema(footer, &schema).ok()) return {};
  const std::vector<int64_t> bytes = BytesOfColumns(footer);
  std::string largest;
  int64_t most = -1;
  for (const Text& text : schema.texts()) {
    const int64_t here = text.leaf < bytes.size() ? bytes[text.leaf] : 0;
    // A name that was cut for messages is none.
    if (here <= most || !FindTextColumn(footer, text.name).ok()) continue;
    most = here;
    largest = text.name;
  }
  return largest;
}

}  // namespace nsa::parquet
