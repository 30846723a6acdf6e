#include "worker/train/data/tokenize/text/spaces.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace nsa::train {
namespace {

std::string Marked(std::string_view text, SpacePrefix prefix) {
  std::string storage;
  return std::string(MarkSpaces(text, prefix, &storage));
}

TEST(Spaces, BecomeMarksBehindAPrefix) {
  EXPECT_EQ(Marked("a  b", SpacePrefix::kNone), "a▁▁b");
  EXPECT_EQ(Marked("a b ", SpacePrefix::kMark), "▁a▁b▁");
  EXPECT_EQ(Marked(" a", SpacePrefix::kMark), "▁▁a");
  EXPECT_EQ(Marked(" a", SpacePrefix::kMarkOrOwn), "▁a");
  EXPECT_EQ(Marked("▁a", SpacePrefix::kMarkOrOwn), "▁a");
  EXPECT_EQ(Marked("\na", SpacePrefix::kMarkOrOwn), "▁\na");
  EXPECT_EQ(Marked("", SpacePrefix::kMark), "");
  EXPECT_EQ(Marked("\u00a0", SpacePrefix::kNone), "\u00a0");  // only U+0020 is a space here
}

TEST(Spaces, ATextThatStaysAsItIsIsNotCopied) {
  const std::string_view text = "▁a";
  std::string storage;
  EXPECT_EQ(MarkSpaces(text, SpacePrefix::kMarkOrOwn, &storage).data(), text.data());
  EXPECT_EQ(MarkSpaces(text, SpacePrefix::kNone, &storage).data(), text.data());
}

TEST(Spaces, MarksBecomeSpacesAgain) {
  EXPECT_EQ(UnmarkSpaces("▁a▁▁b▁"), " a  b ");
  EXPECT_EQ(UnmarkSpaces("\xe2\x96"), "\xe2\x96");  // a part of a mark
  EXPECT_EQ(UnmarkSpaces(""), "");
}

}  // namespace
}  // namespace nsa::train
