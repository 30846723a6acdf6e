#include "worker/train/checkpoint/safetensors.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Writes a file with this header and `data_bytes` bytes of data.
void WriteRaw(const std::filesystem::path& path, const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << std::string(data_bytes, '\0');
}

TEST(Safetensors, WritesTheBytesOfTheFormat) {
  const TempDir dir;
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {-1.5f};
  const auto file = WriteSafetensors(*Folder::Make(dir.path()), "x.safetensors",
                                     {{"a.weight", {2, 3}, a}, {"b", {1}, b}}, {{"format", "pt"}});
  ASSERT_OK(file);
  const std::string bytes = ReadFile(dir / "x.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ((8 + length) % 8, 0u);
  std::string header = bytes.substr(8, length);
  header.erase(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header,
            R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],)"
            R"("data_offsets":[0,24]},"b":{"dtype":"F32","shape":[1],"data_offsets":[24,28]}})");
  ASSERT_EQ(bytes.size(), 8 + length + 28);
  EXPECT_EQ(std::memcmp(bytes.data() + 8 + length, a.data(), 24), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 8 + length + 24, b.data(), 4), 0);
  EXPECT_EQ(file->name(), "x.safetensors");
  EXPECT_EQ(file->bytes(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(file->xxh3_128(), *HashFile(dir / "x.safetensors"));
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const TempDir dir;
  std::vector<float> values(3 << 20);  // is written in more than one piece
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  ASSERT_OK(WriteSafetensors(*Folder::Make(dir.path()), "x",
                             {{"v", {3, 1 << 20}, values}, {"empty", {0}, {}}}, {{"k", "7"}}));
  const auto file = SafetensorsFile::Open(dir / "x");
  ASSERT_OK(file);
  EXPECT_EQ((*file)->metadata().at("k"), "7");
  std::vector<float> back(values.size());
  const SafetensorsFile::Tensor& tensor = (*file)->tensors().at("v");
  EXPECT_EQ(tensor.size, 3 << 20);
  ASSERT_OK((*file)->ReadBytes(tensor, 0, std::as_writable_bytes(std::span(back))));
  EXPECT_EQ(back, values);
}

TEST(Safetensors, RefusesHeadersThatLie) {
  const TempDir dir;
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return absl::StrCat(R"({"t":{"dtype":"F32","shape":[)", shape, R"(],"data_offsets":[)", offsets,
                        "]}}");
  };
  const std::vector<std::pair<std::string, size_t>> lies = {
      {tensor("4", "0,12"), 16},                        // shape and offsets differ
      {tensor("4", "0,16"), 12},                        // past the end
      {tensor("4", "4,20"), 20},                        // a gap
      {tensor("4", "0,16"), 20},                        // bytes left over
      {tensor("4", "16,0"), 16},                        // backwards
      {tensor("-4", "0,16"), 16},                       // negative
      {tensor("4294967296,4294967296,4", "0,16"), 16},  // overflows
      {tensor("4", "0,18446744073709551615"), 16},
      {R"({"t":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}})", 16},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12},
      {"[]", 0},
      {"{\"t\": 1}", 0},
      {"not json", 0},
  };
  for (const auto& [header, bytes] : lies) {
    WriteRaw(dir / "x", header, bytes);
    EXPECT_THAT(SafetensorsFile::Open(dir / "x"), StatusIs(absl::StatusCode::kDataLoss)) << header;
  }
  WriteRaw(dir / "x", tensor("4", "0,16"), 16);
  EXPECT_OK(SafetensorsFile::Open(dir / "x"));
  WriteRaw(dir / "x", R"({"t":{"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]}})", 16);
  EXPECT_THAT(SafetensorsFile::Open(dir / "x", SafetensorsTypes::kFloats),
              StatusIs(absl::StatusCode::kDataLoss,
                       "x: tensor t: type \"F8_E4M3\" (must be F32, BF16 or F16)"));
}

TEST(Safetensors, RefusesFilesThatAreTooShortOrClaimAHugeHeader) {
  const TempDir dir;
  std::ofstream(dir / "x") << "abc";
  EXPECT_THAT(SafetensorsFile::Open(dir / "x"), StatusIs(absl::StatusCode::kDataLoss));
  std::ofstream(dir / "x") << std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  EXPECT_THAT(SafetensorsFile::Open(dir / "x"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header of")));
  EXPECT_THAT(SafetensorsFile::Open(dir / "none"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace nsa::train
