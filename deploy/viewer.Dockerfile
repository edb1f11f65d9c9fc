# OHIF's pages, and nginx, which serves them and passes DICOMweb on to Orthanc.
FROM node:22-slim AS pages
WORKDIR /pages
RUN npm pack --silent @ohif/app@3.13.2 && tar xzf ohif-app-3.13.2.tgz

FROM nginx:1.29-alpine
COPY --from=pages /pages/package/dist /pages
COPY nginx.conf ohif.js /etc/mm3d/
RUN sed -i -e 's|listen LISTEN|listen 8080|' -e 's|root PAGES|root /pages|' -e 's|alias CONFIG|alias /etc/mm3d/ohif.js|' \
        -e 's|http://ORTHANC/|http://orthanc:8042/|' /etc/mm3d/nginx.conf \
    && install -d -o 101 -g 101 /run/mm3d
USER 101
EXPOSE 8080
CMD ["nginx", "-p", "/run/mm3d", "-c", "/etc/mm3d/nginx.conf", "-e", "stderr"]
