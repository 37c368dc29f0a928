# Links the program so that it runs wherever glibc 2.31 or later is (BT_PORTABLE, ./package.sh): its symbols bind to that glibc,
# and all other libraries are in it. Only the link differs from other builds. The objects, as Debian 12's archives, are made with
# the headers of its own glibc, 2.36: what they want and 2.31 lacks does not link, or stands in old_glibc.c.
# tools/package/fetch.sh and libraries.sh put there what is linked with.
set(bt_work ${PROJECT_SOURCE_DIR}/build/package)
set(bt_glibc ${bt_work}/glibc)
set(bt_system /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
if(NOT EXISTS ${bt_work}/static/lib/libcurl.a)
  message(FATAL_ERROR "BT_PORTABLE needs what tools/package/fetch.sh and tools/package/libraries.sh bring: ./package.sh runs both")
endif()

# The system's packages are found first, so that later calls leave them alone; then their archives take their places.
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(prometheus-cpp REQUIRED CONFIG)
find_package(yaml-cpp REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
set(BT_URING_LIBRARY ${bt_system}/liburing.a CACHE FILEPATH "")
set(BT_EDIT_LIBRARIES ${bt_system}/libedit.a ${bt_system}/libtinfo.a ${bt_system}/libbsd.a ${bt_system}/libmd.a)
function(bt_static target archive)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${archive} IMPORTED_LOCATION_RELEASE ${archive})
  if(ARGN)
    set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${ARGN}")
  endif()
endfunction()
bt_static(fmt::fmt ${bt_work}/static/lib/libfmt.a)
bt_static(spdlog::spdlog ${bt_work}/static/lib/libspdlog.a)
bt_static(prometheus-cpp::core ${bt_work}/static/lib/libprometheus-cpp-core.a)
bt_static(CURL::libcurl ${bt_work}/static/lib/libcurl.a OpenSSL::SSL OpenSSL::Crypto ZLIB::ZLIB)
bt_static(OpenSSL::SSL ${bt_system}/libssl.a OpenSSL::Crypto)
bt_static(OpenSSL::Crypto ${bt_system}/libcrypto.a)
bt_static(ZLIB::ZLIB ${bt_system}/libz.a)
bt_static(yaml-cpp ${bt_system}/libyaml-cpp.a)
bt_static(JPEG::JPEG ${bt_system}/libjpeg.a)
bt_static(PNG::PNG ${bt_system}/libpng.a ZLIB::ZLIB)
set(BT_WEBP_LIBRARY ${bt_system}/libwebp.a CACHE FILEPATH "")

add_library(bt_old_glibc OBJECT ${CMAKE_CURRENT_LIST_DIR}/old_glibc.c)
# -B and -L go before the compiler's own folders, where Debian 12's glibc is.
add_link_options(--sysroot=${bt_glibc} -B${bt_glibc}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/
  -L${bt_glibc}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} -L${bt_glibc}/lib/${CMAKE_LIBRARY_ARCHITECTURE} -static-libstdc++ -static-libgcc)
# Parts of glibc up to 2.33.
set(CMAKE_CXX_STANDARD_LIBRARIES "-lpthread -ldl -lrt")
