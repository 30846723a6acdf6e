#include "worker/train/data/read/parquet/values.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/little_endian.h"
#include "common/base/status.h"
#include "worker/train/data/read/parquet/delta.h"
#include "worker/train/data/read/parquet/hybrid.h"

namespace nsa::train::parquet {
namespace {

constexpr std::string_view kEncodingNames[] = {"PLAIN",
                                               "",
                                               "PLAIN_DICTIONARY",
                                               "RLE",
                                               "BIT_PACKED",
                                               "DELTA_BINARY_PACKED",
                                               "DELTA_LENGTH_BYTE_ARRAY",
                                               "DELTA_BYTE_ARRAY",
                                               "RLE_DICTIONARY",
                                               "BYTE_STREAM_SPLIT"};

std::string EncodingName(int64_t encoding) {
  const bool known = encoding >= 0 && encoding < std::ssize(kEncodingNames) && encoding != 1;
  return known ? std::string(kEncodingNames[encoding]) : absl::StrFormat("%d", encoding);
}

// Takes `length` bytes from the front of `rest`.
absl::StatusOr<std::string_view> Take(int64_t length, std::string_view* rest) {
  if (length < 0 || length > std::ssize(*rest)) {
    return absl::DataLossError(
        absl::StrFormat("a value of %d bytes (%d are left)", length, rest->size()));
  }
  const std::string_view value = rest->substr(0, static_cast<size_t>(length));
  rest->remove_prefix(static_cast<size_t>(length));
  return value;
}

// Takes a value with its length in the four bytes before it.
absl::StatusOr<std::string_view> TakePlain(std::string_view* rest) {
  if (rest->size() < 4) return absl::DataLossError("fewer values than the page says");
  const int64_t length = LittleEndian<uint32_t>(*rest);
  rest->remove_prefix(4);
  return Take(length, rest);
}

class PlainValues final : public ValueReader {
 public:
  explicit PlainValues(std::string_view bytes) : rest_(bytes) {}
  absl::StatusOr<std::string_view> Next() override { return TakePlain(&rest_); }

 private:
  std::string_view rest_;
};

class DictionaryValues final : public ValueReader {
 public:
  DictionaryValues(std::string_view indices, int bit_width, const Dictionary& dictionary)
      : indices_(indices, bit_width), dictionary_(dictionary) {}

  absl::StatusOr<std::string_view> Next() override {
    NSA_ASSIGN_OR_RETURN(const HybridReader::Run run, indices_.Peek());
    indices_.Advance(1);
    return dictionary_.At(run.value);
  }

 private:
  HybridReader indices_;
  const Dictionary& dictionary_;
};

// All lengths, and behind them all bytes.
class DeltaLengthValues final : public ValueReader {
 public:
  DeltaLengthValues(DeltaIntegers lengths, std::string_view bytes)
      : lengths_(lengths), rest_(bytes) {}

  absl::StatusOr<std::string_view> Next() override {
    NSA_ASSIGN_OR_RETURN(const int64_t length, lengths_.Next());
    return Take(length, &rest_);
  }

 private:
  DeltaIntegers lengths_;
  std::string_view rest_;
};

// For each value how many bytes it shares with the one before, and the rest as DeltaLengthValues.
class DeltaValues final : public ValueReader {
 public:
  DeltaValues(DeltaIntegers shared, DeltaLengthValues rests)
      : shared_(shared), rests_(std::move(rests)) {}

  absl::StatusOr<std::string_view> Next() override {
    NSA_ASSIGN_OR_RETURN(const int64_t shared, shared_.Next());
    NSA_ASSIGN_OR_RETURN(const std::string_view rest, rests_.Next());
    if (shared < 0 || shared > std::ssize(value_)) {
      return absl::DataLossError(absl::StrFormat(
          "a value that shares %d bytes with one of %d bytes", shared, value_.size()));
    }
    value_.resize(static_cast<size_t>(shared));
    value_.append(rest);
    return value_;
  }

 private:
  DeltaIntegers shared_;
  DeltaLengthValues rests_;
  std::string value_;
};

// Opens delta-encoded numbers at the front of `bytes` and removes them from there.
absl::StatusOr<DeltaIntegers> TakeNumbers(int64_t most, std::string_view* bytes) {
  NSA_ASSIGN_OR_RETURN(DeltaIntegers numbers, DeltaIntegers::Open(*bytes));
  if (numbers.count() > most) {
    return absl::DataLossError(
        absl::StrFormat("%d lengths, and the page has at most %d values", numbers.count(), most));
  }
  NSA_ASSIGN_OR_RETURN(const size_t end, numbers.End());
  bytes->remove_prefix(end);
  return numbers;
}

absl::StatusOr<DeltaLengthValues> MakeDeltaLength(int64_t most, std::string_view bytes) {
  NSA_ASSIGN_OR_RETURN(const DeltaIntegers lengths, TakeNumbers(most, &bytes));
  return DeltaLengthValues(lengths, bytes);
}

absl::StatusOr<std::unique_ptr<ValueReader>> MakeDelta(int64_t most, std::string_view bytes) {
  NSA_ASSIGN_OR_RETURN(const DeltaIntegers shared, TakeNumbers(most, &bytes));
  NSA_ASSIGN_OR_RETURN(const DeltaLengthValues rests, MakeDeltaLength(most, bytes));
  return std::make_unique<DeltaValues>(shared, rests);
}

absl::StatusOr<std::unique_ptr<ValueReader>> MakeIndexed(std::string_view bytes,
                                                         const Dictionary* dictionary) {
  if (dictionary == nullptr) return absl::DataLossError("a dictionary is needed, and none came");
  if (bytes.empty()) return std::make_unique<PlainValues>(bytes);  // only nulls
  const int bit_width = static_cast<uint8_t>(bytes[0]);
  if (bit_width > 32) {
    return absl::DataLossError(absl::StrFormat("indices of %d bits (at most 32)", bit_width));
  }
  return std::make_unique<DictionaryValues>(bytes.substr(1), bit_width, *dictionary);
}

}  // namespace

absl::StatusOr<Dictionary> Dictionary::Read(std::string_view page, int64_t count) {
  if (count < 0 || count > std::ssize(page) / 4) {
    return absl::DataLossError(
        absl::StrFormat("a dictionary of %d values in %d bytes", count, page.size()));
  }
  Dictionary dictionary;
  dictionary.page_ = page;
  dictionary.begins_.reserve(static_cast<size_t>(count));
  for (std::string_view rest = page; count > 0; --count) {
    dictionary.begins_.push_back(static_cast<uint32_t>(page.size() - rest.size()));
    NSA_RETURN_IF_ERROR(TakePlain(&rest).status());
  }
  return dictionary;
}

absl::StatusOr<std::string_view> Dictionary::At(uint32_t index) const {
  if (index >= begins_.size()) {
    return absl::DataLossError(
        absl::StrFormat("value %d of a dictionary of %d", index, begins_.size()));
  }
  std::string_view rest = page_.substr(begins_[index]);
  return TakePlain(&rest);
}

absl::StatusOr<std::unique_ptr<ValueReader>> ValueReader::Make(int64_t encoding,
                                                               std::string_view bytes, int64_t most,
                                                               const Dictionary* dictionary) {
  switch (encoding) {
    case kPlain:
      return std::make_unique<PlainValues>(bytes);
    case kPlainDictionary:
    case kRleDictionary:
      return MakeIndexed(bytes, dictionary);
    case kDeltaLengthByteArray: {
      NSA_ASSIGN_OR_RETURN(DeltaLengthValues values, MakeDeltaLength(most, bytes));
      return std::make_unique<DeltaLengthValues>(values);
    }
    case kDeltaByteArray:
      return MakeDelta(most, bytes);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("encoding ", EncodingName(encoding),
                       " (PLAIN, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY); "
                       "write the file again with one of them"));
  }
}

}  // namespace nsa::train::parquet
