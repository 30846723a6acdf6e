// The header of a NumPy .npy file: \x93NUMPY, version (2 bytes), length of the rest (uint16 in
// version 1.0, uint32 in 2.0 and 3.0), and a Python dictionary such as
//   {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"
#include "common/job/data/token_layout.h"

namespace nsa {
namespace {

constexpr int64_t kLongestHeader = 64 << 10;

struct Dtype {
  std::string_view descr;
  int width;
  bool is_signed;
};
constexpr Dtype kDtypes[] = {
    {"<u2", 2, false}, {"<u4", 4, false}, {"<i4", 4, true}, {"<i8", 8, true}};

// The value of a key: the text within quotes or parentheses, or a word. Empty if the key is not
// there exactly once or its value has no end.
std::string_view ValueOf(std::string_view dictionary, const std::string& key) {
  const std::string quoted = "'" + key + "'";
  const size_t at = dictionary.find(quoted);
  if (at == std::string_view::npos || dictionary.rfind(quoted) != at) return "";
  std::string_view rest = dictionary.substr(at + quoted.size());
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(" :")));
  if (rest.empty()) return "";
  const bool enclosed = rest[0] == '\'' || rest[0] == '(';
  const std::string_view ends = rest[0] == '\'' ? "'" : rest[0] == '(' ? ")" : ",}";
  const size_t begin = enclosed ? 1 : 0;
  const size_t end = rest.find_first_of(ends, begin);
  return end == std::string_view::npos ? "" : rest.substr(begin, end - begin);
}

// The number of elements in "1000,". False for other dimensions.
bool ParseShape(std::string_view shape, int64_t* count) {
  if (!shape.ends_with(',')) return false;
  shape.remove_suffix(1);
  return absl::SimpleAtoi(absl::string_view(shape.data(), shape.size()), count) && *count >= 0;
}

absl::Status Refused(const ByteFile& file, int64_t byte, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: byte %d: %s; save the tokens with "
                      "numpy.save(file, tokens.astype('<u4').ravel())",
                      file.name(), byte, what));
}

// Reads the dictionary and sets `data` to the byte after it.
absl::StatusOr<std::string> ReadDictionary(const ByteFile& file, int64_t* data) {
  NSA_ASSIGN_OR_RETURN(std::string head, file.Head(12));
  head.resize(12, '\0');
  const int major = static_cast<unsigned char>(head[6]);
  const int minor = static_cast<unsigned char>(head[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return Refused(file, 6, absl::StrFormat("version %d.%d (1.0, 2.0 or 3.0)", major, minor));
  }
  const std::string_view length_bytes = std::string_view(head).substr(8);
  const int64_t length =
      major == 1 ? LittleEndian<uint16_t>(length_bytes) : LittleEndian<uint32_t>(length_bytes);
  const int64_t begin = major == 1 ? 10 : 12;
  if (length > kLongestHeader || begin + length > file.size()) {
    return absl::DataLossError(
        absl::StrFormat("%s: byte 8: a header of %d bytes (at most %d, in a file of %d); the file "
                        "was cut off or is damaged, copy it again",
                        file.name(), length, kLongestHeader, file.size()));
  }
  *data = begin + length;
  std::string dictionary(static_cast<size_t>(length), '\0');
  NSA_RETURN_IF_ERROR(file.ReadAt(begin, dictionary));
  return dictionary;
}

}  // namespace

absl::StatusOr<TokenLayout> NumpyLayout(const ByteFile& file) {
  TokenLayout layout;
  NSA_ASSIGN_OR_RETURN(const std::string dictionary, ReadDictionary(file, &layout.offset));
  const int64_t at = layout.offset - static_cast<int64_t>(dictionary.size());
  const std::string_view descr = ValueOf(dictionary, "descr");
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const Dtype& one) { return one.descr == descr; });
  if (dtype == std::end(kDtypes)) {
    return Refused(file, at, absl::StrFormat("dtype '%s' (<u2, <u4, <i4 or <i8)", descr));
  }
  if (ValueOf(dictionary, "fortran_order") != "False") {
    return Refused(file, at, "fortran_order is not False (C order)");
  }
  const std::string_view shape = ValueOf(dictionary, "shape");
  if (!ParseShape(shape, &layout.count)) {
    return Refused(file, at, absl::StrFormat("shape (%s) (one dimension)", shape));
  }
  layout.width = dtype->width;
  layout.is_signed = dtype->is_signed;
  const int64_t bytes = file.size() - layout.offset;
  if (layout.count > bytes / layout.width || layout.count * layout.width != bytes) {
    return absl::DataLossError(absl::StrFormat(
        "%s: byte %d: the header promises %d tokens of %d bytes, but %d bytes follow it; the file "
        "was cut off or is damaged, copy it again",
        file.name(), at, layout.count, layout.width, bytes));
  }
  return layout;
}

}  // namespace nsa
