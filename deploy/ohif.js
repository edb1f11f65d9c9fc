// The settings of OHIF: one archive, through the same server as these pages.
// `?cpu` at the end of the address draws without the graphics card, for computers that have none.
window.config = {
  routerBasename: null,
  extensions: [],
  modes: [],
  showStudyList: true,
  maxNumberOfWebWorkers: 2,
  showWarningMessageForCrossOrigin: false,
  showCPUFallbackMessage: false,
  useCPURendering: new URLSearchParams(window.location.search).has('cpu'),
  defaultDataSourceName: 'archive',
  dataSources: [
    {
      namespace: '@ohif/extension-default.dataSourcesModule.dicomweb',
      sourceName: 'archive',
      configuration: {
        friendlyName: 'Orthanc',
        name: 'orthanc',
        qidoRoot: '/orthanc/dicom-web',
        wadoRoot: '/orthanc/dicom-web',
        qidoSupportsIncludeField: false,
        imageRendering: 'wadors',
        thumbnailRendering: 'wadors',
        enableStudyLazyLoad: true,
        supportsFuzzyMatching: false,
        supportsWildcard: true,
        omitQuotationForMultipartRequest: true,
      },
    },
  ],
};
