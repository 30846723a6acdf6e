# Writes a C++ file with the files of the page, compressed. Run by CMake at build time:
#   cmake -DOUT=page_assets.cc "-DFILES=a.js;b.css" -P EmbedPage.cmake
set(rows "")
set(arrays "")
set(index 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  get_filename_component(ending ${file} LAST_EXT)
  set(type_.html "text/html; charset=utf-8")
  set(type_.js "text/javascript; charset=utf-8")
  set(type_.css "text/css; charset=utf-8")
  set(type_.svg "image/svg+xml")
  # Without name and time, so that the same files give the same bytes.
  execute_process(COMMAND gzip -9nc ${file} OUTPUT_FILE ${OUT}.gz COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${OUT}.gz hex HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 etag)
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${hex}")
  # A string literal has at most 64 KiB in the standard; compilers take more, but lines stay short.
  string(REGEX REPLACE "((\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f]))" "\\1\"\n\"" bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] = \"${bytes}\";\n")
  string(APPEND rows "    {\"/${name}\", \"${type_${ending}}\", \"\\\"${etag}\\\"\", {kFile${index}, sizeof(kFile${index}) - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(REMOVE ${OUT}.gz)
file(WRITE ${OUT} "#include \"server/web/assets.h\"

namespace nsa::server {
namespace {

${arrays}
constexpr Asset kAssets[] = {
${rows}};

}  // namespace

std::optional<Asset> FindAsset(std::string_view path) {
  for (const Asset& asset : kAssets) {
    if (asset.path == (path == \"/\" ? \"/index.html\" : path)) return asset;
  }
  return std::nullopt;
}

}  // namespace nsa::server
")
